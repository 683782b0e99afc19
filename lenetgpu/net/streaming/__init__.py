"""Host to host: images in host memory or a file to labels, copies and reading under kernels."""
