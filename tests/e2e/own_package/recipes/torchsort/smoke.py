import torch
import torchsort

ranks = torchsort.soft_rank(torch.tensor([[8.0, 0.0, 5.0]]), regularization_strength=0.01)
assert ranks.round().tolist() == [[3.0, 1.0, 2.0]], ranks
