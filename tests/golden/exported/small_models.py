"""Small PyTorch models with what real ones have: residuals, batch norm, attention, skips over blocks, tied weights."""

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """A block of a residual network, with operators in place as torchvision has them."""

    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class ConvNet(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(4), Residual(4))
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 1), Residual(6))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(6, 5)

    def forward(self, images):
        x = self.layer2(self.layer1(self.stem(images)))
        return self.fc(self.drop(torch.flatten(self.pool(x), 1)))


class Rotary(nn.Module):
    """Positions as rotations, as Llama has them: a buffer that is not saved, and no gradients."""

    def __init__(self, size):
        super().__init__()
        steps = torch.arange(0, size, 2).float() / size
        self.register_buffer("frequencies", 1.0 / 100**steps, persistent=False)

    @torch.no_grad()
    def forward(self, x, positions):
        angles = positions[:, :, None].float() * self.frequencies[None, None]
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, cos, sin, mask):
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))

        def turned(part):
            half = part.shape[-1] // 2
            other = torch.cat((-part[..., half:], part[..., :half]), -1)
            return part * cos[:, None] + other * sin[:, None]

        mixed = F.scaled_dot_product_attention(
            turned(q), turned(k), v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, cos, sin, mask):
        x = x + self.attention(self.norm1(x), cos, sin, mask)
        return x + self.drop(self.contract(F.gelu(self.expand(self.norm2(x)))))


class Language(nn.Module):
    """Two inputs, several outputs, None among them; a tied embedding; values that all blocks use."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.rotary = Rotary(8)
        self.blocks = nn.ModuleList([Block(16, 2, dropout) for _ in range(2)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids, mask=None):
        x = self.embedding(ids)
        length = ids.shape[1]
        cos, sin = self.rotary(x, torch.arange(length, device=ids.device)[None])
        seen = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()[None, None]
        if mask is not None:
            seen = seen & mask[:, None, None].bool()
        for block in self.blocks:
            x = block(x, cos, sin, seen)
        return {"logits": self.head(self.norm(x)), "hidden": x, "cache": None}


class Counting(nn.Module):
    """Buffers of its own: one counts calls, one follows a mean; and a drop of whole paths."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.training:
            self.calls.add_(1)
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            noise = x.new_empty((x.shape[0], 1)).bernoulli_(0.5)
            x = x * noise.div_(0.5)
        return self.second(x - self.mean)


class Remembering(nn.Module):
    """Buffers that take values which are changed in place afterwards."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), -1.0))
        for name in ("before", "after", "sum"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x):
        x = x * self.weight
        if self.training:
            self.before.copy_(x.detach()[0])
            self.sum.add_(x.detach().sum(0))
        x = torch.relu_(x)
        if self.training:
            self.after.copy_(x.detach()[0])
        return x


class Scaled(nn.Module):
    """Takes a number beside its rows."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, rows, scale):
        return self.second(torch.tanh(self.first(rows))) * scale


class OwnLoss(nn.Module):
    """Computes its loss itself, from labels among its inputs, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x, labels):
        scores = self.body(x)
        return {"loss": F.cross_entropy(scores, labels), "scores": scores}


class Attending(nn.Module):
    """One attention that drops a quarter of its weights in training."""

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.25 if self.training else 0.0)


class MixedBlock(nn.Module):
    """Half of a language model's block, half of a convolutional one's, and it counts what it sees."""

    def __init__(self, width, dropout, shared):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)
        self.shared = shared
        self.drop = nn.Dropout1d(dropout)
        self.dropout = dropout
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("level", torch.zeros(width))

    def forward(self, x, scale):
        y = self.norm(x.transpose(1, 2)).transpose(1, 2)
        q, k = self.expand(y).chunk(2, -1)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], y[:, None], dropout_p=p)[:, 0]
        y = self.contract(torch.cat((F.relu(y, inplace=True), self.shared(y)), -1))
        if self.training:
            self.seen += 1
            self.level.mul_(0.75).add_(y.detach().mean((0, 1)), alpha=0.25)
        y = self.drop(y) * scale[:, None]
        y += x
        return y - 0.5 * self.level


class Mixed(nn.Module):
    """Everything that makes cuts hard: a weight used by all blocks, skips over them, buffers, outputs from the middle."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.stem = nn.Linear(5, 8)
        shared = nn.Linear(8, 8, bias=False)
        self.blocks = nn.ModuleList([MixedBlock(8, dropout, shared) for _ in range(4)])
        self.join = nn.Linear(16, 8)
        self.drop = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, scale):
        rows = x.shape[0]
        x = torch.tanh(self.stem(x))
        passed = []
        for block in self.blocks:
            x = block(x, scale)
            passed.append(x)
        x = self.join(torch.cat((x, passed[0]), -1)) + passed[1]
        x = self.norm(self.drop(x)).view(rows, -1, 8)
        return {"values": self.head(x), "cache": None, "early": passed[0], "mean": x.mean(1)}


class CachedBlock(nn.Module):
    """Puts a row behind those that it has seen, and goes on with what it makes of all of them."""

    def __init__(self):
        super().__init__()
        self.make = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.25)

    def forward(self, x, past):
        seen = torch.cat((past, torch.tanh(self.make(x))[:, None]), 1)
        return x + self.drop(seen).mean(1), seen


class Cached(nn.Module):
    """State that goes from call to call, of each block its own; a number for each row that first and last blocks use."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([CachedBlock() for _ in range(3)])
        self.head = nn.Linear(4, 3)

    def forward(self, rows, cache, scale):
        x, made = self.stem(rows) * scale, []
        for block, past in zip(self.blocks, cache):
            x, seen = block(x, past)
            made.append(seen)
        return {"values": self.head(x * scale), "cache": made}


class TwoWays(nn.Module):
    """An input that training uses earlier than evaluation does."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, rows, noise):
        x = torch.tanh(self.stem(rows))
        first, second, third = self.blocks
        x = torch.tanh(first(x + noise if self.training else x))
        return third(torch.tanh(second(x)) + noise)


class Towers(nn.Module):
    """Two inputs that meet at the end; what comes first gives the second only its number of rows."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.head = nn.Linear(8, 3)

    def forward(self, left, right):
        rows = left.shape[0]
        one = torch.tanh(self.left(left))
        return self.head(torch.cat((one, self.right(right).view(rows, 4)), -1))


class Simple(nn.Module):
    """The model of other servers' examples, by their names: whole numbers, nothing to learn."""

    def forward(self, first, second):
        return first + second, first - second
