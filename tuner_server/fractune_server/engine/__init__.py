"""The life of a job, one file for each phase: ingest, tune, validate, publish."""
