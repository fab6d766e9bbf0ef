"""Redis: work on its way out, results on their way in, and the live workers."""
