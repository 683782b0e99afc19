"""The features on mma.sync (sm_80 and later), Winograd transforms in front of conv2."""
