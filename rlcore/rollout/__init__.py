"""The scheduler that feeds engines with prompts and makes batches of what comes back."""
