"""Training functions as published Keras tutorials write them: models with a ``train_step`` of their own, small.

Most have no ``call``, or one that ``fit`` never uses. ``built`` says whether the model declares itself built, which
is what lets Keras train it under a strategy.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

FEATURES, LATENT, CLASSES = 6, 3, 4


def _images(run, labels=False):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(48, FEATURES)).astype("float32")
    y = generator.integers(0, CLASSES, size=(48,))
    data = (x, y) if labels else x
    return tf.data.Dataset.from_tensor_slices(data).batch(run.global_batch_size)


def _dense(inputs, *units):
    last = units[-1]
    hidden = [layers.Dense(size, activation="tanh") for size in units[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *hidden, layers.Dense(last)])


def _draw(shape, like):
    """Draw numbers that depend on the batch, so that one device and replicas draw alike."""
    total = ops.sum(like, axis=-1, keepdims=True)
    return ops.sin(total * (1.0 + ops.arange(shape, dtype=like.dtype)))


class GAN(keras.Model):
    """https://keras.io/guides/custom_train_step_in_tensorflow/ (end-to-end GAN example)."""

    def __init__(self, built=False):
        super().__init__()
        self.discriminator = _dense(FEATURES, 5, 1)
        self.generator = _dense(LATENT, 5, FEATURES)
        self.built = built

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        d_optimizer.build(self.discriminator.trainable_variables)
        g_optimizer.build(self.generator.trainable_variables)

    def train_step(self, real):
        batch = ops.shape(real)[0]
        fake = self.generator(_draw(LATENT, real))
        combined = ops.concatenate([fake, real], axis=0)
        labels = ops.concatenate([ops.ones((batch, 1)), ops.zeros((batch, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(combined))
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(_draw(LATENT, real)))
            g_loss = self.loss_fn(ops.zeros((batch, 1)), judged)
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


class VAE(keras.Model):
    """https://keras.io/examples/generative/vae/."""

    def __init__(self, built=False):
        super().__init__()
        self.encoder = _dense(FEATURES, 5, 2 * LATENT)
        self.decoder = _dense(LATENT, 5, FEATURES)
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.built = built

    @property
    def metrics(self):
        return [self.total_loss_tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(data), 2, axis=-1)
            z = mean + ops.exp(0.5 * log_var) * _draw(LATENT, data)
            reconstruction_loss = ops.mean(ops.sum(ops.square(self.decoder(z) - data), axis=-1))
            kl_loss = ops.mean(ops.sum(-0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var)), axis=1))
            total_loss = reconstruction_loss + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        return {"loss": self.total_loss_tracker.result()}


class DiffusionModel(keras.Model):
    """https://keras.io/examples/generative/ddim/, with its exponential moving average."""

    def __init__(self, built=False):
        super().__init__()
        self.network = _dense(FEATURES + 1, 8, FEATURES)
        self.ema_network = keras.models.clone_model(self.network)
        self.built = built

    def compile(self, **kwargs):
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")

    @property
    def metrics(self):
        return [self.noise_loss_tracker]

    def train_step(self, images):
        noises = _draw(FEATURES, images)
        times = ops.sigmoid(ops.sum(images, axis=-1, keepdims=True))
        noisy = ops.cos(times) * images + ops.sin(times) * noises
        with tf.GradientTape() as tape:
            predicted = self.network(ops.concatenate([noisy, times], axis=-1), training=True)
            noise_loss = self.loss(noises, predicted)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        for weight, ema in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema.assign(0.9 * ema + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}


class ContrastiveModel(keras.Model):
    """https://keras.io/examples/vision/semisupervised_simclr/, with a loss of each example."""

    def __init__(self, built=False):
        super().__init__()
        self.encoder = _dense(FEATURES, 8, 5)
        self.projection_head = _dense(5, 4)
        self.linear_probe = _dense(5, CLASSES)
        self.built = built

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        contrastive_optimizer.build(self.encoder.trainable_variables + self.projection_head.trainable_variables)
        probe_optimizer.build(self.linear_probe.trainable_variables)
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        return [self.probe_accuracy]

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            one = self.projection_head(self.encoder(images, training=True))
            two = self.projection_head(self.encoder(images + 0.1 * _draw(FEATURES, images), training=True))
            contrastive_loss = -ops.mean(ops.sum(ops.normalize(one, axis=1) * ops.normalize(two, axis=1), axis=1))
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        gradients = tape.gradient(contrastive_loss, weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            logits = self.linear_probe(self.encoder(images, training=False))
            probe_loss = self.probe_loss(labels, logits)
        weights = self.linear_probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(probe_loss, weights), weights, strict=True))
        self.probe_accuracy.update_state(labels, logits)
        return {m.name: m.result() for m in self.metrics}


class SiameseModel(keras.Model):
    """https://keras.io/examples/vision/siamese_network/, without its ``call``."""

    def __init__(self, built=False):
        super().__init__()
        self.embedding = _dense(FEATURES, 5, 4)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.built = built

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, data):
        anchor, positive, negative = data
        with tf.GradientTape() as tape:
            near = ops.sum(ops.square(self.embedding(anchor) - self.embedding(positive)), -1)
            far = ops.sum(ops.square(self.embedding(anchor) - self.embedding(negative)), -1)
            loss = ops.mean(ops.maximum(near - far + 0.5, 0.0))
        gradients = tape.gradient(loss, self.embedding.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.embedding.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


class Distiller(keras.Model):
    """https://keras.io/examples/vision/knowledge_distillation/ as it was before Keras 3: no ``call``."""

    def __init__(self, built=False):
        super().__init__()
        self.teacher = _dense(FEATURES, 8, CLASSES)
        self.student = _dense(FEATURES, 5, CLASSES)
        self.built = built

    def compile(self, optimizer, student_loss_fn, distillation_loss_fn, temperature=3.0):
        super().compile(optimizer=optimizer)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.temperature = temperature

    def train_step(self, data):
        x, y = data
        teacher = self.teacher(x, training=False)
        with tf.GradientTape() as tape:
            student = self.student(x, training=True)
            distillation = self.distillation_loss_fn(
                ops.softmax(teacher / self.temperature, axis=1), ops.softmax(student / self.temperature, axis=1)
            )
            loss = 0.1 * self.student_loss_fn(y, student) + 0.9 * distillation
        weights = self.student.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Sampled(keras.Model):
    """An autoencoder whose ``call`` takes something else than ``fit`` is given."""

    def __init__(self, built=False):
        super().__init__()
        self.encoder = _dense(FEATURES, LATENT)
        self.decoder = _dense(LATENT, FEATURES)
        self.built = built

    def call(self, latent, scale=1.0):
        return self.decoder(latent * scale)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(self.encoder(data)) - data))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}


class WGAN(GAN):
    """https://keras.io/examples/generative/wgan_gp/: several steps of the discriminator, a gradient penalty."""

    def train_step(self, real):
        weights = self.discriminator.trainable_variables
        for _ in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(_draw(LATENT, real), training=True)
                mixed = 0.5 * (real + fake)
                with tf.GradientTape() as inner:
                    inner.watch(mixed)
                    judged = self.discriminator(mixed, training=True)
                norm = ops.sqrt(ops.sum(ops.square(inner.gradient(judged, mixed)), axis=1) + 1e-6)
                cost = ops.mean(self.discriminator(fake)) - ops.mean(self.discriminator(real))
                d_loss = cost + 10.0 * ops.mean(ops.square(norm - 1.0))
            self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = -ops.mean(self.discriminator(self.generator(_draw(LATENT, real), training=True)))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def _adversarial(model, **kwargs):
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.05), loss)


def _plain(model, **kwargs):
    model.compile(optimizer=keras.optimizers.SGD(0.05), **kwargs)


def _train(run, model_class, compile_it=_plain, dataset=None, built=False, **kwargs):
    with run.strategy.scope():
        model = model_class(built=built)
        compile_it(model, **kwargs)
    run.watch(model=model)
    run.fit(model, dataset if dataset is not None else _images(run), epochs=1)


def gan(run, built=False):
    _train(run, GAN, _adversarial, built=built)


def wgan(run, built=False):
    _train(run, WGAN, _adversarial, built=built)


def vae(run, built=False):
    _train(run, VAE, built=built)


def diffusion(run, built=False):
    _train(run, DiffusionModel, loss=keras.losses.mean_absolute_error, built=built)


def contrastive(run, built=False):
    def compile_it(model):
        model.compile(keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.05))

    _train(run, ContrastiveModel, compile_it, _images(run, labels=True), built=built)


def siamese(run, built=False):
    x = np.random.default_rng(1).normal(size=(3, 48, FEATURES)).astype("float32")
    triplets = tf.data.Dataset.from_tensor_slices(tuple(x)).batch(run.global_batch_size)
    _train(run, SiameseModel, dataset=triplets, built=built)


def distillation(run, built=False):
    def compile_it(model):
        student_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05), student_loss, keras.losses.KLDivergence())

    _train(run, Distiller, compile_it, _images(run, labels=True), built=built)


def sampled(run, built=False):
    _train(run, Sampled, built=built)


ALL = (gan, wgan, vae, diffusion, contrastive, siamese, distillation, sampled)


class RepairedVAE(VAE):
    """The VAE with each replica's loss divided by their number; ``built`` lets it train under a strategy."""

    def __init__(self, replicas):
        super().__init__(built=True)
        self.replicas = replicas

    def train_step(self, data):
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(data), 2, axis=-1)
            z = mean + ops.exp(0.5 * log_var) * _draw(LATENT, data)
            reconstruction_loss = ops.mean(ops.sum(ops.square(self.decoder(z) - data), axis=-1))
            kl_loss = ops.mean(ops.sum(-0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var)), axis=1))
            total_loss = reconstruction_loss + kl_loss
            share = total_loss / self.replicas
        grads = tape.gradient(share, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        return {"loss": self.total_loss_tracker.result()}


def repaired_vae(run):
    with run.strategy.scope():
        model = RepairedVAE(run.num_replicas)
        _plain(model)
    run.watch(model=model)
    run.fit(model, _images(run), epochs=1)


def refused_by_one_device_strategy(run, train):
    """Train, unless ``OneDeviceStrategy`` is asked to."""
    with run.strategy.scope():
        if isinstance(tf.distribute.get_strategy(), tf.distribute.OneDeviceStrategy):
            raise NotImplementedError("not on one device")
    train(run)


def by_batches(run, share=True):
    """A loop of the program's own, with a dataset made by a function, and results at the end."""
    with run.strategy.scope():
        model = _dense(FEATURES, 4, 1)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        model.optimizer.build(model.trainable_variables)
    run.watch(model=model, optimizer=model.optimizer)
    generator = np.random.default_rng(2)
    x = generator.normal(size=(48, FEATURES)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))

    def dataset(context):
        shard = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return shard.batch(context.get_per_replica_batch_size(run.global_batch_size))

    @tf.function
    def step(batch):
        def replica_step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(model(x) - tf.cast(y, model.compute_dtype))[:, 0]
                divisor = run.global_batch_size if share else tf.shape(losses)[0]
                loss = tf.reduce_sum(losses) / tf.cast(divisor, losses.dtype)
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return run.strategy.reduce("SUM", run.strategy.run(replica_step, args=(batch,)), axis=None)

    for batch in run.batches(dataset):
        run.record(loss=step(batch))
    run.predict(model, data.batch(run.global_batch_size))
