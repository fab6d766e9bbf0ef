"""What `import fractune` offers, by feature: each has its function, result, table and picture together."""
