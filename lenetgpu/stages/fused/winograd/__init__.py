"""Images to pool2's features on a CPU: Winograd transforms around the register tile."""
