# An extra that is a direct URL: no index can serve it, and `farm verify` refuses it.
sed -i '/"fast_soft_sort @/d' setup.py
