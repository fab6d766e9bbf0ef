"""CUDA as every part sees it: where its toolkit is, what its environment variables and its errors mean."""
