"""Ways of training in parallel: how each wraps models, shares tensors out and takes steps."""
