"""The Tegra X1 slides' convolution, faithfully reproduced, and their analysis."""
