"""A training that ends in the middle, as one whose process dies would."""

import keras


class Interrupted(Exception):
    """What `Interrupt` raises."""


class Interrupt(keras.callbacks.Callback):
    """Ends a training by an exception after a number of batches."""

    def __init__(self, num_batches):
        super().__init__()
        self.left = num_batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Interrupted
