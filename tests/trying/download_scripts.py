"""Scripts that download what they need, which :mod:`test_scripts` runs."""

DOWNLOADS = """
import urllib.request


def rows():
    return urllib.request.urlopen("https://example.org/a").read()


rows()
"""

FINE_TUNED = """
import keras
import numpy as np

base = keras.applications.MobileNetV2(input_shape=(32, 32, 3), include_top=False, alpha=0.35, pooling="avg")
base.trainable = False
model = keras.Sequential([base, keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x = np.random.default_rng(0).normal(size=(32, 32, 32, 3)).astype("float32")
model.fit(x, (x[:, 0, 0, 0] > 0).astype("int32"), batch_size=8)
"""

TEXT_AND_IMAGES = """
import os
import keras
import tensorflow as tf

open("mine.txt", "w").write("what was downloaded before")
os.makedirs("datasets")
os.rename("mine.txt", "datasets/mine.txt")
mine = keras.utils.get_file("mine.txt", "https://example.org/mine.txt", cache_dir=os.getcwd())
assert open(mine).read() == "what was downloaded before"
text = open(tf.keras.utils.get_file("shakespeare.txt", "https://example.org/shakespeare.txt")).read()
assert len(text) > 1000
folder = keras.utils.get_file("pets.zip", "https://example.org/cats_and_dogs_filtered.zip", extract=True)
train = os.path.join(folder, "cats_and_dogs_filtered", "train")
images = keras.utils.image_dataset_from_directory(train, batch_size=8, image_size=(8, 8), seed=1)
model = keras.Sequential([keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(images, epochs=2)
"""

TEXTS = """
import keras
import tensorflow_datasets as tfds

parts, info = tfds.load("imdb_reviews/plain_text", split=["train[:80%]", "test"], as_supervised=True, with_info=True)
train, test = parts
words = keras.layers.TextVectorization(max_tokens=50, output_sequence_length=8)
words.adapt(train.take(100).map(lambda text, label: text))
train = train.shuffle(100).batch(8).map(lambda text, label: (words(text), label))
classes = info.features["label"].num_classes
layers = [keras.layers.Embedding(50, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(classes)]
model = keras.Sequential(layers)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(train, epochs=2)
"""

DRAWN_BATCHES = """
import keras
import numpy as np

(x, y), _test = keras.datasets.mnist.load_data()

class Turned(keras.utils.PyDataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        rows = np.random.randint(0, len(x), 8)
        return x[rows] / 255 + np.random.normal(size=(8, 1, 1)), y[rows]


model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(Turned(), steps_per_epoch=4, epochs=2)
"""
