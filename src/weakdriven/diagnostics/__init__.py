"""What a model's logits and its pair's gradients look like, token by token; measures models and never changes them."""
