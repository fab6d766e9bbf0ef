"""Generated from protos/; see scripts/stubs."""
