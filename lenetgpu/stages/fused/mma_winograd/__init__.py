"""The features on mma.sync (sm_80 and later) with a Winograd conv2."""
