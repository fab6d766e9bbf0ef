"""The state folder: files of models and bundles, parts of uploads."""
