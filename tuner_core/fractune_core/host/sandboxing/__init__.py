"""The sandbox of a process that reads strangers' files, and the files that the process leaves."""
