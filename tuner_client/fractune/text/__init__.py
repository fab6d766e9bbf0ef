"""Numbers, tables, pictures and files as people read and write them."""
