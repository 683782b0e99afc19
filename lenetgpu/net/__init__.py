"""From images as callers have them to labels: taking them, preparing a plan, running it."""
