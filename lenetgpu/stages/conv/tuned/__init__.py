"""Our own fp32 convolutions."""
