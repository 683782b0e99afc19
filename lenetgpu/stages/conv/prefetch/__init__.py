"""The Pascal paper's convolutions (Chang et al.), planner beside kernel."""
