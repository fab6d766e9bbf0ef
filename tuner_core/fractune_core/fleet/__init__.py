"""The protocol of server and workers over Redis: signed messages, files, marks, entries of live workers."""
