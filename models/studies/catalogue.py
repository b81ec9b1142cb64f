"""All tables and figures that a study reruns, with what the papers say there. Imports no torch."""

from __future__ import annotations

from models.studies.catalogue_own import CONSTANTS, OPTIMISERS, PEOPLE, RLAIF
from models.studies.exhibit import Exhibit

PART_ONE = (
    Exhibit(
        "part-1",
        "figure-4",
        "Vanilla PPO: score, perplexity, KL and length by step",
        "The score rises while quality does not; collapse shows in KL, perplexity and length",
        "no numbers printed; the collapsed model answers longer, at lower perplexity",
    ),
    Exhibit(
        "part-1",
        "figure-6",
        "Score reparameterisation: scaling, normalisation and clipping of rewards and advantages",
        "Normalised and clipped scores hold the policy nearer to its start than raw ones",
        "no numbers printed; reward clips .3 and .8, advantage clips .12 and .5",
    ),
    Exhibit(
        "part-1",
        "figure-7",
        "Policy constraints: KL penalty, importance sampling against the reference, entropy bonus",
        "The token KL penalty is what keeps training stable; an entropy bonus adds nothing to it",
        "no numbers printed; KL coefficients .05, .1 and .2",
    ),
    Exhibit(
        "part-1",
        "figure-8",
        "Initialisation of critic and policy",
        "The critic's start matters early only; a policy without SFT fails",
    ),
    Exhibit(
        "part-1",
        "figure-9",
        "PPO-max by step",
        "PPO-max stays stable: the score rises at a bounded KL, and quality with it",
    ),
)
PART_TWO = (
    Exhibit(
        "part-2",
        "figure-1",
        "Mean and deviation of the preference strength, M reward models",
        "Many strengths are near 0, and about a quarter below; deviations have a long tail",
        "25 % of pairs below 0",
    ),
    Exhibit(
        "part-2",
        "figure-2",
        "Deviation over mean strength, twenty groups",
        "The deviation is U-shaped over the mean",
    ),
    Exhibit(
        "part-2",
        "figure-3",
        "Agreement of labels with a judge by strength",
        "The stronger the preference, the more often a judge agrees with its label",
        ".164 (weakest), .544 (near 0), .956 (strongest)",
    ),
    Exhibit(
        "part-2",
        "figure-4",
        "A reward model of each tenth of the pairs by strength",
        "The weakest fifth teaches worse than chance, the next fifth about chance; the strongest "
        "tenth is not the best",
        "below .5 for tenths 1 and 2, about .5 for 3 and 4",
    ),
    Exhibit(
        "part-2",
        "figure-5",
        "Reward models of the two weakest tenths, labels as given and flipped",
        "Flipped labels of the weakest tenths teach better than the given ones",
    ),
    Exhibit(
        "part-2",
        "figure-6",
        "Margin, soft labels and both, on the strongest tenth",
        "Soft labels with margin are best there, margin alone helps little",
    ),
    Exhibit(
        "part-2",
        "figure-7",
        "Adaptive margin on all pairs",
        "A margin for all pairs makes the reward model more accurate",
    ),
    Exhibit(
        "part-2",
        "figure-8",
        "Five ways to train a reward model, three validation sets, by step",
        "Denoised labels are more accurate on the judge's labels, and overfit the given ones less",
    ),
    Exhibit(
        "part-2",
        "figure-9",
        "PPO without KL penalty on the five reward models",
        "On denoised reward models KL grows evenly and perplexity hardly fluctuates",
    ),
    Exhibit(
        "part-2",
        "figure-10",
        "The five policies of figure 9 against SFT and against the baseline's",
        "Policies of the four methods beat the baseline's",
        "no numbers in the text",
    ),
    Exhibit(
        "part-2",
        "figure-11",
        "t-SNE of chosen and rejected features, with and without SimCSE",
        "With SimCSE the features of chosen and rejected answers overlap less",
    ),
    Exhibit(
        "part-2",
        "figure-12",
        "PPO without KL penalty on contrastive reward models",
        "Return and reward are more stable on contrastive reward models",
    ),
    Exhibit(
        "part-2",
        "figure-13",
        "The policies of figure 12 against SFT and against the baseline's",
        "Contrastive reward models give slightly better policies, SimCSE on pairs the best",
        "no numbers in the text",
    ),
    Exhibit(
        "part-2",
        "table-2",
        "MetaRM rounds against SFT",
        "Wins rise over the first rounds; the last one declines",
        "wins 44, 65, 69, 64 (harmless), 39, 62, 73, 67 (helpful)",
    ),
    Exhibit(
        "part-2",
        "table-3",
        "The best MetaRM round against SFT and against vanilla PPO",
        "The best round beats SFT, and vanilla PPO too",
        "69/28/3 against SFT, 54/31/15 against PPO (harmless)",
    ),
    Exhibit(
        "part-2",
        "figure-15",
        "The same on a task family that the reward model never saw",
        "Out of distribution the method still beats both, by less",
        "no numbers in the text",
    ),
    Exhibit(
        "part-2",
        "figure-16",
        "Score differences between answers to one prompt, before and after MetaRM",
        "MetaRM spreads the scores of different answers to a prompt apart",
    ),
    Exhibit(
        "part-2",
        "figure-17",
        "Training curves of the rounds and of vanilla PPO",
        "In each round the score rises; KL stays below vanilla PPO's",
    ),
)
ADVANTAGE_MODEL = (
    Exhibit(
        "advantage-model",
        "table-1",
        "Accuracy and calibration error of reward model and Advantage Model",
        "The Advantage Model is as accurate and better calibrated",
        "accuracy 69.25 and 69.43, ECE 4.70 and 3.48 (HH); 74.75 and 75.28, 5.35 and 3.83",
    ),
    Exhibit(
        "advantage-model",
        "figure-1",
        "Reward scores by task, and wins on the forget set",
        "A reward model's scores differ between tasks; PPO on it loses what SFT was expert at",
        "forget set 16.87 / 53.84 / 29.28 (win, tie, lose)",
    ),
    Exhibit(
        "advantage-model",
        "figure-2",
        "Accuracy by score difference",
        "The Advantage Model's curve lies nearer to 1 / (1 + exp(-difference))",
    ),
    Exhibit(
        "advantage-model",
        "figure-3",
        "Scores of good and bad answers",
        "The Advantage Model tells good from bad answers more distinctly",
    ),
    Exhibit(
        "advantage-model",
        "figure-4",
        "Mean and deviation of scores by task",
        "The Advantage Model's means differ far less between tasks",
    ),
    Exhibit(
        "advantage-model",
        "figure-5",
        "PPO by step on the main set, by what scores it",
        "On the Advantage Model quality rises further and does not fall again",
    ),
    Exhibit(
        "advantage-model",
        "table-2",
        "Policies against SFT on the main and the forget set",
        "The Advantage Model loses less of the forget set, with rehearsal least",
        "main 12.72/12.62/74.66, 14.87/10.38/74.74, 15.78/9.77/74.45 (win, lose, tie)",
    ),
    Exhibit(
        "advantage-model",
        "figure-6",
        "The number of clusters of selective rehearsal",
        "The number of clusters hardly matters",
        "rewards vary by about .05",
    ),
)
EXHIBITS = (*PART_ONE, *PART_TWO, *ADVANTAGE_MODEL, *PEOPLE, *RLAIF, *OPTIMISERS, *CONSTANTS)


def exhibits_of(paper: str, name: str) -> list[Exhibit]:
    """The exhibit of a name, or `all` of a paper; empty where the paper has none of that name."""
    return [each for each in EXHIBITS if each.paper == paper and name in ("all", each.name)]
