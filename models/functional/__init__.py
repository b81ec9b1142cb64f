"""Pure torch maths, one file a method: tensors and scalars in, `(loss, metrics)` out."""
