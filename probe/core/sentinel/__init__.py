"""The sentinel: the loss, the gradients and the facts of the loop, at every step."""
