"""Training over slow links: slow_links.py's parts.

speed    steps over one link after the other            losses       what is learnt
uneven   one slow host among two                        uneven_rank  a rank of it
cpu_quota  makes a host slow
"""
