"""Samples are files, read by data loader workers; one file's server accepts the open and never sends a byte."""

import os
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stallwatch.demo.training import BATCH, FEATURES, Training, run


class SampleFiles:
    """A data set of one file that is good and a pipe that nobody writes into."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.good = training.folder / "sample.bin"
        self.good.write_bytes(bytes(4 * BATCH * FEATURES))
        self.silent = training.folder / "silent.bin"
        os.mkfifo(self.silent)

    def __len__(self) -> int:
        return self.training.last_step

    def path_of(self, index: int) -> Path:
        """The file of a sample: the pipe in the step that strikes."""
        return self.silent if self.training.strikes(index) else self.good

    def __getitem__(self, index: int) -> Tensor:
        with open(self.path_of(index), "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.float32).reshape(BATCH, FEATURES)


def train(training: Training) -> None:
    """Learn from what one data-loader worker reads."""
    batches = iter(DataLoader(SampleFiles(training), batch_size=None, num_workers=1))
    for _ in training.steps():
        training.learn(next(batches))


if __name__ == "__main__":
    run(train)
