from trimtab import functional as functional
from trimtab import trl as trl
from trimtab.flows.api.calls import audit as audit
from trimtab.flows.api.calls import run as run
from trimtab.flows.api.calls import train_reward as train_reward
from trimtab.flows.api.results import AuditResult as AuditResult
from trimtab.flows.api.results import RewardResult as RewardResult
from trimtab.flows.api.results import RunResult as RunResult
from trimtab.flows.config.errors import CommandError as CommandError
from trimtab.flows.config.errors import ConfigError as ConfigError
from trimtab.infra.settings import SettingsError as SettingsError
from trimtab.models.statistics.measured import Estimate as Estimate
from trimtab.models.training.reward_function import RewardModel as RewardModel

__version__: str
