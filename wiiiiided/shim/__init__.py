"""The shim: one small process per job and attempt, between the daemon and the ranks.

It starts the ranks, drains their output, notices their end and writes it down; so a job does not
notice when the daemon is killed, restarted or upgraded. Standard library only, everything imported
at the start (the package may be replaced on disk while it runs), no threads.

What it and the daemon share is one directory per attempt, and a unix socket in it:

    <jobs>/<id>/                made by the daemon
        files/work/             the job's working directory, kept from attempt to attempt
        <attempt>/              made by the daemon: "1", "2", …
            order.json          what to do: `files.Order`, written by the daemon before the start
            shim.json           the claim: which shim has this attempt. Made by link(2), so that of
                                two shims only one can ever have it, and it is whole when it appears
            key                 of the attempt, on one of several machines: who has it may knock
            store.pem           with network.encrypt, where the Store is: a certificate for it
            ctl.<pid>           the shim's unix socket: `files` has its lines
            door                on one of several machines: where the daemon hands over connections
                                to the job's Store, see `handover`
            pipes               by which a sweeper knows what the ranks have started
            rank-0.log …        output of each rank, rotated to rank-0.log.1
            stats-0 …           stats page of each rank
            stacks-0 …          where faulthandler writes when asked
            error-0.json …      where torch.distributed.elastic's @record writes an exception
            exit.json           the end: `files.End`, fsynced, made by rename

    daemon                     shim                                ranks
    order.json ─────────────►  claim, unpack, the way to the
                               Store, subreaper, start ─────────────────► session each
    status ◄── ctl socket ───  pipes ◄──────────────────────────── stdout, stderr
    stop, signal, stacks ───►  TERM … KILL, until nothing is left
    exit.json ◄──────────────  write, fsync, leave

Whatever the daemon reads here was written by the jobs' user: it is bounded, and trusted for nothing
but this job.
"""
