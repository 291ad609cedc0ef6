"""The ladder: the first WIIIIIDE's six stages, and today's ways, on one piece of work.

contenders   what is compared, as data: socket options, codecs, thresholds; and today's ways
work         the network and the samples, the same for all
messages     a stage's messages ⇄ bytes            channel   these bytes ⇄ a socket
server       hands out batches and weights, applies gradients
stage_node   a node of that server                 rank      a rank of today's ways
node         the frame round both: warm up, wait for the start, count, report
processes    starts all of them alike              counts    what is sent to a node, and back
table        what was counted, as a result         heritage  puts it into docs/heritage.md
"""
