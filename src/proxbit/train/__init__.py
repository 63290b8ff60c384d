"""Training: one function behind ``proxbit train``, its parts, and what transformers need.

>>> from proxbit.train import Config, fit
>>> config = Config(epochs=1, max_steps_per_epoch=2, batch_size=8, recalibrate=1, frozen=0.5)
>>> [record.phase for record in fit(config)]
['frozen']
"""

from proxbit.train.config import Config
from proxbit.train.fitting import evaluate, fit, load_network, open_run, resume_run
from proxbit.train.records import Record

__all__ = ["Config", "Record", "evaluate", "fit", "load_network", "open_run", "resume_run"]
