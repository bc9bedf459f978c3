"""Numbers of any dtype as words of 4 bytes, so that those of several dtypes travel in one message.

Words are float32, which nobody reads as numbers: on GPUs, TensorFlow keeps int32 in the memory of the host.
"""

import tensorflow as tf


def as_words(matrix: tf.Tensor) -> tf.Tensor:
    """Returns [rows, n] as float32 [rows, words], to be read as bits, with zeros where the last word is not full."""
    num_rows = -1 if matrix.shape[0] is None else matrix.shape[0]
    per_word = max(1, 4 // matrix.dtype.size)
    missing = -matrix.shape[1] % per_word
    matrix = tf.pad(matrix, [[0, 0], [0, missing]]) if missing else matrix
    shape = [num_rows, matrix.shape[1] // per_word, per_word] if per_word > 1 else [num_rows, matrix.shape[1]]
    words = tf.bitcast(tf.reshape(matrix, shape), tf.float32)
    return tf.reshape(words, [num_rows, matrix.shape[1] * matrix.dtype.size // 4])


def from_words(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns what `as_words` was given, with the zeros that it has added."""
    num_rows = -1 if words.shape[0] is None else words.shape[0]
    words_each, num_words = dtype.size // 4, words.shape[1]
    if words_each > 1:
        return tf.bitcast(tf.reshape(words, [num_rows, num_words // words_each, words_each]), dtype)
    return tf.reshape(tf.bitcast(words, dtype), [num_rows, num_words * 4 // dtype.size])
