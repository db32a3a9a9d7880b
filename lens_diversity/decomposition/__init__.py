"""Pure tensor functions of an ensemble's members; they know nothing of models."""
