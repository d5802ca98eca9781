"""Denoising diffusion (Ho et al., 2020): the schedule of noise, both directions, two networks.

Imported by diffusion.py. docs/diffusion.md derives the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import tinygrad_cuda as tc
from tinygrad_cuda import nn
from tinygrad_cuda.nn import functional as F

Predictor = Callable[[tc.Tensor, tc.Tensor], tc.Tensor]


class Schedule:
    r"""Linear beta_0 ... beta_{T-1}, and everything that follows from them as tables.

    .. math:: \alpha_t = 1 - \beta_t, \quad \bar\alpha_t = \prod_{s \le t} \alpha_s

    Steps are int64 Tensors that index the tables, never Python numbers, so that every step of
    training and of sampling is the same plan. The tables are computed in float64.

    Args:
        steps: T.
        first, last: beta_0 and beta_{T-1}.

    Example:
        >>> float(Schedule().alphas_bar[999])
        4.035829765375835e-05
    """

    def __init__(self, steps: int = 1000, first: float = 1e-4, last: float = 0.02) -> None:
        self.steps = steps
        self.betas = np.linspace(first, last, steps)
        self.alphas_bar = np.cumprod(1 - self.betas)
        # The variance of x_{t-1} given x_t and x_0: nothing is left to add at t = 0.
        before = np.append(1.0, self.alphas_bar[:-1])
        self.sigmas = np.sqrt(self.betas * (1 - before) / (1 - self.alphas_bar))
        self._signal = tc.tensor(np.sqrt(self.alphas_bar), dtype=tc.float32)
        self._noise = tc.tensor(np.sqrt(1 - self.alphas_bar), dtype=tc.float32)
        self._share = tc.tensor(self.betas / np.sqrt(1 - self.alphas_bar), dtype=tc.float32)
        self._growth = tc.tensor(1 / np.sqrt(1 - self.betas), dtype=tc.float32)
        self._sigma = tc.tensor(self.sigmas, dtype=tc.float32)

    def add_noise(self, x: tc.Tensor, t: tc.Tensor, noise: tc.Tensor) -> tc.Tensor:
        r"""x_t, at once: ``sqrt(alphabar_t) x + sqrt(1 - alphabar_t) noise``.

        Args:
            x: images, shape (N, C, H, W).
            t: a step for each image, int64 of shape (N,).
            noise: standard normal, of the shape of x.
        """
        return _each(self._signal, t) * x + _each(self._noise, t) * noise

    def reverse(self, x: tc.Tensor, t: tc.Tensor, eps: tc.Tensor, z: tc.Tensor) -> tc.Tensor:
        r"""x_{t-1} from x_t:
        ``(x - beta_t / sqrt(1 - alphabar_t) eps) / sqrt(1 - beta_t) + sigma_t z``.

        The divisor is the root of alpha_t, not of alphabar_t, which at t = 999 is 157 times
        smaller.

        Args:
            x: x_t, shape (N, C, H, W).
            t: the step of each image, int64 of shape (N,).
            eps: the noise that the network sees in x.
            z: standard normal, of the shape of x; without effect at t = 0.
        """
        mean = (x - _each(self._share, t) * eps) * _each(self._growth, t)
        return mean + _each(self._sigma, t) * z

    @tc.no_grad()
    def sample(
        self,
        predict: Predictor,
        x: tc.Tensor,
        watch: Callable[[int, tc.Tensor], None] | None = None,
    ) -> tc.Tensor:
        """Runs all reverse steps from x, which is standard normal.

        Args:
            predict: the noise in x_t, from x_t and t (int64, shape (N,)).
            x: where to start, shape (N, C, H, W).
            watch: called with each t and x_t, and at the end with -1 and the images.
        """

        @tc.compile
        def step(x: tc.Tensor, t: tc.Tensor) -> tuple[tc.Tensor, tc.Tensor]:
            return self.reverse(x, t, predict(x, t), tc.randn_like(x)), t - 1

        # Counted down on the device: a step needs nothing from the host.
        t = tc.full((x.shape[0],), self.steps - 1, dtype=tc.int64)
        for number in reversed(range(self.steps)):
            if watch is not None:
                watch(number, x)
            x, t = step(x, t)
        if watch is not None:
            watch(-1, x)
        return x


def _each(table: tc.Tensor, t: tc.Tensor) -> tc.Tensor:
    """The entries of a table for images, shape (N, 1, 1, 1)."""
    return table[t].reshape(-1, 1, 1, 1)


class Denoiser(nn.Module):
    """Two 3x3 convolutions, 4 to 8 to 4 channels, whose result is added to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: tc.Tensor, t: tc.Tensor | None = None) -> tc.Tensor:
        """The noise in x; the step t is not looked at."""
        return x + self.conv2(F.relu(self.conv1(x)))


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(8, channels)


class ResidualBlock(nn.Module):
    """Norm, SiLU and convolution, twice; the time is added between them, the input at the end."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1 = _norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: tc.Tensor, time: tc.Tensor) -> tc.Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(time)[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.shortcut(x)


class Attention(nn.Module):
    """Every place looks at every other, with one head, and adds what it finds."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: tc.Tensor) -> tc.Tensor:
        n, c, height, width = x.shape
        places = self.qkv(self.norm(x)).reshape(n, 3, c, height * width).transpose(2, 3)
        found = F.scaled_dot_product_attention(places[:, 0], places[:, 1], places[:, 2])
        return x + self.out(found.transpose(1, 2).reshape(n, c, height, width))


class UNet(nn.Module):
    """Predicts the noise in one-channel images whose sides are multiples of four.

    Residual blocks at full, half and quarter size, with attention at the smallest, and skip
    connections from the way down to the way up.

    Args:
        width: channels at full size; twice as many below. A multiple of 8.
        steps: how many times t there are.
    """

    frequencies: tc.Tensor

    def __init__(self, width: int = 32, steps: int = 1000) -> None:
        super().__init__()
        self.width = width
        time, wide = 4 * width, 2 * width
        scale = np.exp(-math.log(10_000) * np.arange(width // 2) / (width // 2))
        angles = np.arange(steps)[:, None] * scale
        table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        self.register_buffer("frequencies", tc.tensor(table, dtype=tc.float32), persistent=False)
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down1 = ResidualBlock(width, width, time)
        self.to_half = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = ResidualBlock(width, wide, time)
        self.to_quarter = nn.Conv2d(wide, wide, 3, stride=2, padding=1)
        self.low1 = ResidualBlock(wide, wide, time)
        self.attention = Attention(wide)
        self.low2 = ResidualBlock(wide, wide, time)
        self.up2 = ResidualBlock(2 * wide, wide, time)
        self.up1 = ResidualBlock(wide + width, width, time)
        self.norm = _norm(width)
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: tc.Tensor, t: tc.Tensor) -> tc.Tensor:
        time = F.silu(self.time(self.frequencies[t]))
        full = self.down1(self.first(x), time)
        half = self.down2(self.to_half(full), time)
        low = self.low1(self.to_quarter(half), time)
        low = self.low2(self.attention(low), time)
        up = self.up2(tc.cat([F.interpolate(low, scale_factor=2), half], 1), time)
        up = self.up1(tc.cat([F.interpolate(up, scale_factor=2), full], 1), time)
        return self.last(F.silu(self.norm(up)))


if __name__ == "__main__":
    raise SystemExit("ddpm.py has the formulas and the networks; run diffusion.py")
