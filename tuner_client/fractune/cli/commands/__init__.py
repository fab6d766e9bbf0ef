"""The commands: what each takes and prints. No room imports another."""
