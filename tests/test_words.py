"""Numbers of any dtype as words of 4 bytes."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp import words

DTYPES = [tf.uint8, tf.float16, tf.bfloat16, tf.int32, tf.float32, tf.int64, tf.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(1, 0), (0, 3), (3, 1), (2, 4), (3, 7)])
def test_numbers_come_back_with_zeros_behind_them(shape, dtype):
    numbers = tf.cast(tf.constant(np.random.default_rng(0).integers(0, 200, shape)), dtype)
    sent = words.as_words(numbers)
    assert (sent.dtype, sent.shape) == (tf.float32, (shape[0], -(-shape[1] * dtype.size // 4)))
    back = words.from_words(sent, dtype)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back[:, : shape[1]].numpy(), numbers.numpy())
    assert not np.any(back[:, shape[1] :].numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_the_number_of_rows_may_be_unknown(dtype):
    numbers = tf.cast(tf.constant([[1, 2, 3], [4, 5, 6]]), dtype)
    there_and_back = tf.function(
        lambda rows: words.from_words(words.as_words(rows), dtype),
        input_signature=[tf.TensorSpec([None, 3], dtype)],
        autograph=False,
    )
    np.testing.assert_array_equal(there_and_back(numbers)[:, :3].numpy(), numbers.numpy())
