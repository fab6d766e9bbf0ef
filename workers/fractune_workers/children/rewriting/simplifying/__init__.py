"""Rules that shorten an importer's long forms, and the pass that asks them."""
