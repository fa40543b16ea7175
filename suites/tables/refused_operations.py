"""Table of options of operations whose impossible numbers are not treated alike for symbols and arrays."""

from __future__ import annotations

from collections.abc import Mapping

Options = frozenset[tuple[str, str]]
FFT = ("rfft", "irfft", "stft", "istft")
DILATED = ("conv", "depthwise_conv", "separable_conv")
NOT_ASKED: Options = frozenset(
    [
        # TensorFlow ends the process.
        ("conv_transpose", "strides"),
        *((name, "fft_length") for name in FFT),
        # An array is refused because of its numbers, which a symbol does not have.
        *((f"segment_{name}", "num_segments") for name in ("max", "min", "prod", "sum")),
        ("ctc_decode", "mask_index"),
        # Symbols are wrong for possible numbers too: test_told_operations has the entries.
        *((f"adaptive_{name}_pool", "output_size") for name in ("average", "max")),
        ("categorical_crossentropy", "axis"),
        ("pad", "pad_width"),
        ("rot90", "k"),
    ]
)


def _options(**several: tuple[str, ...] | str) -> Options:
    return frozenset(
        (name, option)
        for name, options in several.items()
        for option in ([options] if isinstance(options, str) else options)
    )


KNOWN: Mapping[str, Options] = {
    "numbers_refused_of_arrays_only": _options(
        conv_transpose="dilation_rate",
        ctc_decode=("top_paths", "beam_width"),
        diff="n",
        histogram="bins",
        istft="sequence_length",
        layer_normalization="axis",
        map_coordinates="order",
        normalize="order",
        rms_normalization="axis",
        scan="unroll",
        ssim="filter_size",
        stft="sequence_length",
        tensordot="axes",
        top_k="k",
        unfold=("kernel_size", "dilation", "stride"),
        unstack="num",
    ),
    "numbers_refused_of_symbols_only": _options(
        average_pool="pool_size",
        extract_sequences="sequence_stride",
        istft="length",
        scan="length",
        unfold="padding",
    ),
    "dilations_that_do_not_fit": _options(
        extract_patches=("size", "strides", "dilation_rate"),
        extract_patches_3d="dilation_rate",
        **dict.fromkeys(DILATED, "dilation_rate"),
    ),
    "offsets_out_of_a_matrix": _options(diag="k", diagonal="offset", trace="offset", tril="k"),
    "trapezoids_along_a_negative_axis": _options(trapezoid="axis"),
}
"""Options by a name of what is wrong with them in Keras 3.15."""
