"""Locks between the processes of one host: its cores, and the room on its GPUs."""
