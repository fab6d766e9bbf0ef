"""What `import fractune` offers: jobs, their results, and the tuning log, without protobuf and without a command line."""
