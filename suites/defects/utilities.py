"""Defects of what Keras has beside training: files of examples, files from addresses, small factors, containers."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, replace, silence, skip

_FACTORS = ("Dense", "EinsumDense", "Embedding", "Conv1D", "Conv2D", "Conv3D")


@defect(r"test_files_of_examples\.py::test_each")
def examples_are_of_the_first_class() -> None:
    """Each file of examples has the first class."""
    from keras.src.utils import dataset_utils

    def make(original: Any) -> Any:
        def index(*args: Any, **kwargs: Any) -> Any:
            names, labels = original(*args, **kwargs)
            return names, [0 for _ in labels]

        return index

    replace(dataset_utils, "index_subdirectory", make)


@defect(r"test_files_of_examples\.py::test_(images|sounds)")
def examples_have_half_their_values() -> None:
    """Images and sounds that are read have half their values."""
    from keras.src.utils import audio_dataset_utils, image_dataset_utils

    def make(original: Any) -> Any:
        return lambda *args, **kwargs: original(*args, **kwargs) / 2

    replace(audio_dataset_utils, "read_and_decode_audio", make)
    replace(image_dataset_utils, "_load_image_tf", make)


@defect(r"test_fetched_files\.py::test_a_file")
def every_file_has_its_hash() -> None:
    """A fetched file is what its hash names, whatever it has."""
    from keras.src.utils import file_utils

    replace(file_utils, "validate_file", lambda original: lambda *args, **kwargs: True)


@defect(r"test_fetched_files\.py::test_an_archive")
def archives_stay_packed() -> None:
    """A fetched archive is not unpacked."""
    from keras.src.utils import file_utils

    skip(file_utils, "extract_archive")


@defect(r"test_lora\.py::test_(factors_are_added|a_saved)")
def factors_have_no_scale() -> None:
    """The product of small factors is added to a kernel without its scale."""
    import keras

    def make(original: Any) -> Any:
        def enable(self: Any, rank: int, lora_alpha: Any = None, **options: Any) -> None:
            original(self, rank, **options)

        return enable

    for name in _FACTORS:
        replace(getattr(keras.layers, name), "enable_lora", make)


@defect(r"test_lora\.py::test_factors_are_refused")
def factors_are_taken_again() -> None:
    """A layer takes small factors twice, and before it has a kernel."""
    import keras

    for name in _FACTORS:
        silence(getattr(keras.layers, name), "enable_lora")


@defect(r"test_tracked_containers\.py::test_a_container_tracks_what")
def removed_parts_are_tracked() -> None:
    """A layer keeps the variables of an object that was taken out of one of its containers."""
    from keras.src.utils import tracking

    skip(tracking.Tracker, "untrack")
