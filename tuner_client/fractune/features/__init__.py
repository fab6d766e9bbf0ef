"""The API of `import fractune`, by feature: each has its function, result, table and picture together."""
