"""The Tegra X1 slides' convolution as they give it, and their analysis."""
