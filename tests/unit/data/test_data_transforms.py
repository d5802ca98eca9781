"""Transforms: values, channels, refusals, and that a composition knows whether it takes batches."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_cuda as tc
from tinygrad_cuda.core.errors import ArgumentError, ShapeError
from tinygrad_cuda.data import Compose, DataLoader, ImageDataset, Normalize
from tinygrad_cuda.data import transforms as T
from tinygrad_cuda.data.randomness import loading, sample_randomness
from tinygrad_cuda.data.transforms import works_on_batches


def test_normalize_each_channel() -> None:
    """(x - mean) / std per channel, on an image and on a batch, in the image's dtype."""
    normalize = Normalize([0.0, 1.0], [1.0, 0.5])
    image = np.ones((2, 3, 4), dtype=np.float32)
    out = normalize(image)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out[0], np.ones((3, 4)))
    np.testing.assert_array_equal(out[1], np.zeros((3, 4)))
    np.testing.assert_array_equal(normalize(np.stack([image, image]))[1], out)
    np.testing.assert_array_equal(image, np.ones((2, 3, 4)))  # the input is left alone


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((3, 4), r"\(\.\.\., channels, height, width\)"),
        ((1, 3, 4), r"\(\.\.\., 2, height, width\)"),
        ((2, 1, 3, 3), r"\(\.\.\., 2, height, width\)"),
    ],
)
def test_normalize_refuses_other_channels(shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(ShapeError, match=text):
        Normalize([0.0, 0.0], [1.0, 1.0])(np.zeros(shape))


@pytest.mark.parametrize(("mean", "std"), [([0.0], [1.0, 1.0]), ([0.0], [0.0])])
def test_normalize_refuses_its_arguments(mean: list[float], std: list[float]) -> None:
    with pytest.raises(ArgumentError, match="Normalize"):
        Normalize(mean, std)


def test_compose() -> None:
    """In order; batched only if every part is."""
    normalize = Normalize([1.0], [2.0])
    both = Compose([lambda x: x * 4, normalize])
    assert both(np.ones((1, 1, 1)))[0, 0, 0] == 1.5
    assert not works_on_batches(both)
    assert works_on_batches(Compose([normalize, normalize]))
    assert repr(Compose([normalize])) == "Compose([Normalize(mean=(1.0,), std=(2.0,))])"


# Against torch ------------------------------------------------------------------------------------


def picture(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def once(transform: Any, image: Any, index: int = 0) -> Any:
    with sample_randomness(seed=3, epoch=1, index=index):
        return transform(image)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", [(5, 7), (20, 9), (11, 13)])
def test_resize_is_torchs(mode: str, antialias: bool, size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    if mode == "bicubic" and not antialias:
        pytest.skip("torch takes another cubic there; Pillow's is ours")
    image = picture(3, 11, 13)
    options = {} if mode == "nearest" else {"antialias": antialias, "align_corners": False}
    given = torch.from_numpy(image)[None]
    expected = torch.nn.functional.interpolate(given, size, mode=mode, **options)[0].numpy()
    found = T.Resize(size, mode, antialias=antialias)(image)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("angle", [0.0, 17.0, -60.0, 90.0, 180.0])
def test_rotation_is_torchs_grid_sample(mode: str, angle: float) -> None:
    """Counter-clockwise, about the middle, zeros outside."""
    torch = pytest.importorskip("torch")
    image = picture(2, 9, 11)
    turn = np.radians(angle)
    height, width = image.shape[1:]
    # What affine_grid wants: from results to sources, in halves of the sides, x first, y down.
    theta = [
        [np.cos(turn), -np.sin(turn) * height / width, 0],
        [np.sin(turn) * width / height, np.cos(turn), 0],
    ]
    grid = torch.nn.functional.affine_grid(
        torch.tensor([theta], dtype=torch.float64), [1, 2, height, width], align_corners=False
    )
    given = torch.from_numpy(image.astype(np.float64))[None]
    expected = torch.nn.functional.grid_sample(given, grid, mode=mode, align_corners=False)[0]
    found = T.RandomRotation((angle, angle), mode)(image)
    if mode == "nearest":  # a few places are as near to one pixel as to another
        assert np.mean(np.abs(found - expected.numpy()) < 1e-6) > 0.93
    else:
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


# By what they are ---------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [3.0, 17.0, 45.0, 133.0])
def test_rotation_is_pillows(angle: float) -> None:
    """Pixel for pixel with the nearest one taken, also in the size that holds all of it."""
    pillow = pytest.importorskip("PIL.Image")
    for shape in ((21, 23), (20, 24), (8, 9)):
        image = picture(1, *shape)
        for expand in (False, True):
            wanted = np.asarray(pillow.fromarray(image[0]).rotate(angle, expand=expand))
            found = T.RandomRotation((angle, angle), expand=expand)(image)[0]
            assert found.shape == wanted.shape
            assert np.mean(found == wanted) > 0.98


def test_quarter_turns_and_whole_shifts() -> None:
    image = picture(3, 6, 8)
    for quarters in range(4):
        turn = T.RandomRotation((90.0 * quarters,) * 2, "bilinear", expand=True)
        np.testing.assert_allclose(turn(image), np.rot90(image, quarters, (1, 2)), atol=1e-6)
    corner = T.RandomRotation((90, 90), center=(4.0, 4.0))(image)
    np.testing.assert_array_equal(corner[:, :, :], _turned_about(image, 4.0))
    bytes_ = (picture(1, 5, 5) * 255).astype(np.uint8)
    assert T.RandomRotation((180, 180))(bytes_).dtype == np.uint8
    np.testing.assert_array_equal(T.RandomRotation((180, 180))(bytes_), bytes_[:, ::-1, ::-1])


def _turned_about(image: Any, at: float) -> Any:
    """A quarter turn counter-clockwise about a point, pixel by pixel."""
    out = np.zeros_like(image)
    for row, column in np.ndindex(*image.shape[1:]):
        x, y = column + 0.5 - at, row + 0.5 - at
        source_row, source_column = int(at + x - 0.5), int(at - y - 0.5)
        if 0 <= source_row < image.shape[1] and 0 <= source_column < image.shape[2]:
            out[:, row, column] = image[:, source_row, source_column]
    return out


def test_affine_shifts_scales_and_shears() -> None:
    image = np.zeros((1, 21, 21), np.float32)
    image[0, 10, 10] = 1
    places = set()
    for index in range(60):
        row, column = np.argwhere(once(T.RandomAffine(0, translate=(0.1, 0.2)), image, index)[0])[0]
        places.add((int(row) - 10, int(column) - 10))
    assert {abs(column) for _, column in places} == {0, 1, 2}
    assert {abs(row) for row, _ in places} == {0, 1, 2, 3, 4}
    block = np.zeros((1, 21, 21), np.float32)
    block[0, 8:13, 8:13] = 1
    assert once(T.RandomAffine(0, scale=(2, 2)), block).sum() == 100
    sheared = once(T.RandomAffine(0, shear=(45, 45)), block)[0]
    assert sheared.sum() == 25 and (sheared.sum(1)[8:13] == 5).all()
    starts = [int(np.flatnonzero(row)[0]) for row in sheared[8:13]]
    assert np.abs(np.diff(starts)).tolist() == [1] * 4
    assert once(T.RandomAffine(0, fill=0.5, translate=(1, 1)), block).max() <= 1


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_pad_and_crop_back(mode: str) -> None:
    image = picture(3, 4, 5)
    padded = T.Pad((1, 2, 3, 0), 0.25, mode)(image)
    wanted = np.pad(
        image,
        ((0, 0), (2, 0), (1, 3)),
        mode,
        **({"constant_values": 0.25} if mode == "constant" else {}),
    )  # type: ignore[call-overload]
    np.testing.assert_array_equal(padded, wanted)
    np.testing.assert_array_equal(T.CenterCrop((4, 5))(T.Pad((2, 3), 0, mode)(image)), image)


def test_crops() -> None:
    image = np.arange(64.0).reshape(1, 8, 8)
    assert T.CenterCrop((10, 4))(image).shape == (1, 10, 4)
    corners = set()
    for index in range(80):
        part = once(T.RandomCrop(6), image, index)
        assert part.shape == (1, 6, 6)
        np.testing.assert_array_equal(np.diff(part[0], axis=1), 1)
        corners.add(part[0, 0, 0])
    assert corners == {8.0 * row + column for row in range(3) for column in range(3)}
    assert once(T.RandomCrop(8, padding=4), image).shape == (1, 8, 8)
    assert once(T.RandomCrop((9, 5), pad_if_needed=True), image).shape == (1, 9, 5)
    with pytest.raises(ShapeError, match="smaller than the crop"):
        T.RandomCrop(9)(image)
    for index in range(20):
        assert once(T.RandomResizedCrop(4), image, index).shape == (1, 4, 4)
    whole = once(T.RandomResizedCrop(8, scale=(1, 1), ratio=(1, 1)), image)
    np.testing.assert_allclose(whole, image, atol=1e-5)


def test_flips() -> None:
    image = picture(2, 3, 4)
    for flip, axis in ((T.RandomHorizontalFlip, 2), (T.RandomVerticalFlip, 1)):
        np.testing.assert_array_equal(flip(p=1)(image), np.flip(image, axis))
        np.testing.assert_array_equal(flip(p=1)(flip(p=1)(image)), image)
        np.testing.assert_array_equal(flip(p=0)(image), image)
        flipped = sum(not np.array_equal(once(flip(), image, k), image) for k in range(100))
        assert 30 < flipped < 70


def test_colours_against_colorsys() -> None:
    """A turn of the hue, one pixel after another; factors of one change nothing."""
    image = picture(3, 4, 5)
    for turn in (-0.5, -0.2, 0.1, 0.45):
        found = once(T.ColorJitter(hue=(turn, turn)), image)
        for row, column in np.ndindex(4, 5):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column].tolist())
            wanted = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
            np.testing.assert_allclose(found[:, row, column], wanted, atol=1e-6)
    np.testing.assert_allclose(once(T.ColorJitter(0, 0, 0, 0), image), image, atol=1e-6)
    bright = once(T.ColorJitter(brightness=(1.5, 1.5)), image)
    np.testing.assert_allclose(bright, np.clip(image * 1.5, 0, 1), atol=1e-6)
    grey = T.Grayscale(3)(image)
    np.testing.assert_allclose(
        grey[0], 0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2], 1e-5
    )
    np.testing.assert_allclose(once(T.ColorJitter(saturation=(0, 0)), image), grey, atol=1e-6)
    flat = once(T.ColorJitter(contrast=(0, 0)), image)
    np.testing.assert_allclose(flat, np.full_like(image, grey[0].mean()), atol=1e-6)
    np.testing.assert_allclose(once(T.RandomGrayscale(p=1), image), grey)
    bytes_ = (image * 255).astype(np.uint8)
    assert once(T.ColorJitter(0.5, 0.5, 0.5, 0.1), bytes_).dtype == np.uint8


def test_blur_and_erasing() -> None:
    image = np.zeros((1, 9, 9), np.float32)
    image[0, 4, 4] = 1
    blurred = T.GaussianBlur(5, 1.0)(image)[0]
    line = np.exp(-0.5 * np.arange(-2.0, 3) ** 2)
    line /= line.sum()
    np.testing.assert_allclose(blurred[2:7, 2:7], np.outer(line, line), atol=1e-7)
    assert blurred.sum() == pytest.approx(1, abs=1e-6)
    shares = []
    ones = np.ones((3, 20, 30), np.float32)
    for index in range(40):
        found = once(T.RandomErasing(p=1, value=(0.0, 0.5, 2.0)), ones, index)
        rows, columns = np.nonzero(found[0] == 0)
        assert (found[1] == 0.5).sum() == (found[2] == 2).sum() == len(rows)
        assert len(rows) == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
        shares.append(len(rows) / 600)
    assert 0.015 < min(shares) < 0.1 < max(shares) < 0.35
    assert ones.min() == 1
    noise = once(T.RandomErasing(p=1, value="random"), ones)
    assert 0.5 < noise[noise != 1].std() < 1.5


def test_to_tensor_and_dtypes() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
    image = T.ToTensor()(pixels)
    assert image.shape == (3, 2, 4) and image.dtype == np.float32
    np.testing.assert_allclose(image, pixels.transpose(2, 0, 1) / 255, rtol=1e-6)
    assert T.ToTensor()(pixels[..., 0]).shape == (1, 2, 4)
    back = T.ConvertImageDtype(np.uint8)(image)
    np.testing.assert_array_equal(back, pixels.transpose(2, 0, 1))
    np.testing.assert_allclose(T.ConvertImageDtype(tc.float32)(back), image)
    pillow = pytest.importorskip("PIL.Image")
    np.testing.assert_array_equal(T.ToTensor()(pillow.fromarray(pixels)), image)
    assert T.Lambda(abs)(-2) == 2


def test_to_tensor_leaves_images_of_a_data_set_alone() -> None:
    """As a transform of MNIST or CIFAR10, where PyTorch's programs have it, axes stay in order."""
    normalize = T.Compose([T.ToTensor(), Normalize([0.5], [0.5])])
    pixels = (picture(4, 28, 28) * 255).astype(np.uint8)
    image, _ = ImageDataset(pixels, np.arange(4), transform=normalize)[2]
    np.testing.assert_allclose(image[0], pixels[2] / 127.5 - 1, atol=1e-6)
    colour = picture(3, 32, 32)
    np.testing.assert_array_equal(T.ToTensor()(colour), colour)
    assert T.ToTensor()(picture(32, 30, 3)).shape == (3, 32, 30)
    assert T.ToTensor()(picture(3, 32, 3)).shape == (3, 3, 32)


def test_half_precision_stays() -> None:
    """Also where SciPy computes, which has no float16."""
    image = picture(3, 8, 9)
    for transform in (T.RandomRotation((90, 90)), T.GaussianBlur(3, 1.0), T.Resize(5)):
        found = transform(image.astype(np.float16))
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, transform(image), atol=2e-3)


# Randomness ---------------------------------------------------------------------------------------

RANDOM = [
    T.RandomCrop(5), T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomRotation(30),
    T.RandomAffine(10, (0.2, 0.2), (0.8, 1.2), 10), T.RandomResizedCrop(6),
    T.ColorJitter(0.4, 0.4, 0.4), T.RandomErasing(p=0.9), T.GaussianBlur(3), T.RandomGrayscale(0.5),
    T.RandomApply([T.RandomRotation(30)], 0.7),
    T.RandomChoice([T.RandomRotation(30), T.RandomErasing(p=1)]),
    T.RandomOrder([T.RandomRotation(30), T.Pad(1)]),
]  # fmt: skip


@pytest.mark.parametrize("transform", RANDOM, ids=lambda t: type(t).__name__)
def test_random_transforms_depend_on_the_sample_alone(transform: Any) -> None:
    """Equal for equal (seed, epoch, index), in any order; different for others; input untouched."""
    image = picture(3, 8, 8)
    before = image.copy()
    found = [once(transform, image, index) for index in range(12)]
    again = [once(transform, image, index) for index in reversed(range(12))][::-1]
    for a, b in zip(found, again):
        np.testing.assert_array_equal(a, b)
    assert len({a.tobytes() for a in found}) > 1
    np.testing.assert_array_equal(image, before)
    assert not works_on_batches(transform) and repr(transform)


def test_an_image_draws_by_its_place() -> None:
    """Alone, counted from the end, in a batch, and by threads: the same picture."""
    data = ImageDataset(
        (picture(9, 12, 12) * 255).astype(np.uint8), np.arange(9), T.RandomCrop(8, padding=2)
    )
    with loading(seed=5, epoch=2):
        batch = data.batch(np.array([7, 0, 7]))[0]
        np.testing.assert_array_equal(batch[0], data[7][0])
        np.testing.assert_array_equal(batch[0], data[-2][0])
        np.testing.assert_array_equal(batch[2], batch[0])
    passes = []
    for batch_size, workers in ((9, 0), (2, 0), (4, 2)):
        loader = DataLoader(data, batch_size, num_workers=workers, seed=5)
        two = [np.concatenate([x.numpy() for x, _ in loader]) for _ in range(2)]
        assert not np.array_equal(*two)
        passes.append(two)
    np.testing.assert_array_equal(passes[0], passes[1])
    np.testing.assert_array_equal(passes[0], passes[2])


def test_outside_of_a_sample_manual_seed_decides() -> None:
    image = picture(1, 8, 8)

    def draw() -> list[bytes]:
        tc.manual_seed(4)
        return [T.RandomRotation(50)(image).tobytes() for _ in range(3)]

    first = draw()
    assert first == draw() and len(set(first)) == 3


def test_batched_ones_take_batches() -> None:
    batch = picture(4, 3, 8, 8)
    for transform in (
        T.Resize(5),
        T.CenterCrop(6),
        T.Pad(2),
        T.Grayscale(),
        T.ConvertImageDtype("uint8"),
    ):
        assert works_on_batches(transform)
        np.testing.assert_array_equal(transform(batch)[2], transform(batch[2]))


def test_tensors_stay_tensors() -> None:
    image = tc.tensor(picture(1, 4, 4), device="cpu")
    normalized = Normalize([0.5], [0.25])(image)
    assert isinstance(normalized, tc.Tensor)
    np.testing.assert_allclose(normalized.numpy(), (image.numpy() - 0.5) / 0.25, rtol=1e-6)
    found = T.RandomHorizontalFlip(p=1)(image)
    assert isinstance(found, tc.Tensor)
    assert found.tolist() == image.flip(2).tolist()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: T.Pad((1, 2, 3)), "bad padding"),
        (lambda: T.Pad(1, padding_mode="circular"), "unknown padding_mode"),
        (lambda: T.Resize((4, 4), max_size=5), "max_size"),
        (lambda: T.Resize(4, "lanczos"), "unknown interpolation"),
        (lambda: T.RandomRotation(-3), "degrees is negative"),
        (lambda: T.RandomAffine(0, translate=(2, 0)), "bad translate"),
        (lambda: T.RandomHorizontalFlip(1.5), "not a probability"),
        (lambda: T.ColorJitter(hue=0.7), "bad hue"),
        (lambda: T.ColorJitter(contrast=-1), "bad contrast"),
        (lambda: T.GaussianBlur(4), "bad kernel_size"),
        (lambda: T.RandomErasing(value="noise"), "bad value"),
        (lambda: T.RandomChoice([abs], p=[0]), "bad probabilities"),
        (lambda: T.Grayscale(2), "num_output_channels"),
        (lambda: T.Grayscale()(np.zeros((2, 3, 3))), "grey or RGB"),
        (lambda: T.Pad(1)(np.zeros((3, 3))), "not an image"),
        (lambda: T.ToTensor()(np.zeros(3)), "not a picture"),
        (lambda: T.ConvertImageDtype("int32"), "not the dtype of an image"),
        (lambda: Normalize([0.5], [0.5])(np.ones((1, 2, 2), np.uint8)), "not floating"),
        (lambda: T.RandomRotation((10, -10)), "bad degrees"),
        (lambda: T.RandomRotation((1, 2, 3)), "bad degrees"),
        (lambda: T.RandomAffine(0, translate=(0.1,)), "bad translate"),
        (lambda: T.RandomAffine(0, shear=(1, 2, 3)), "bad shear"),
        (lambda: T.Pad(1, fill=300)(np.ones((1, 2, 2), np.uint8)), "not a value of uint8"),
        (lambda: T.Pad(1, fill=(1, 2))(np.ones((3, 2, 2))), "one value for each channel"),
    ],
)
def test_refusals(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(tc.TgcError, match=text):
        make()


def test_every_name_of_the_page() -> None:
    assert all(hasattr(T, name) for name in T.__all__)
    with pytest.raises(AttributeError, match="RandomCrop"):
        _ = T.RandomCrp  # type: ignore[attr-defined]
