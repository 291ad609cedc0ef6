"""The shim: one small process per allocation, between the daemon and the ranks.

It starts the ranks, drains their output, notices their end and writes it down; so a job does not
notice when the daemon is killed, restarted or upgraded. Standard library only, everything imported
at the start (the package may be replaced on disk while it runs), no threads.

It shares with the daemon one directory per attempt, and a unix socket in it:

    <jobs>/<id>/                made by the daemon
        files/work/             the job's working directory, kept from attempt to attempt
        <attempt>/              made by the daemon: "1", "2", …
            order.json          what to start: `protocol.LaunchOrder`, from the daemon
            shim.json           the claim: which shim has this attempt. Made by link(2), so that of
                                two shims only one can ever have it, and it is whole when it appears
            key                 of the attempt, on one of several machines: for port authentication
            store.pem           with network.encrypt, where the Store is: a certificate for it
            ctl.<pid>           the shim's unix socket: `protocol` has its lines
            door                on one of several machines: where the daemon hands over connections
                                to the job's Store (`fd_receiver`)
            pipes               by which a cleanup knows what the ranks have started
            rank-0.log …        output of each rank, rotated to rank-0.log.1
            stats-0 …           stats page of each rank
            stacks-0 …          where faulthandler writes when asked
            error-0.json …      where torch.distributed.elastic's @record writes an exception
            exit.json           the end: `protocol.AttemptEnd`, fsynced, made by rename

    daemon                     shim                                ranks
    order.json ─────────────►  claim, unpack, route to the
                               Store, subreaper, start ─────────────────► session each
    status ◄── ctl socket ───  pipes ◄──────────────────────────── stdout, stderr
    stop, signal, stacks ───►  TERM … KILL, until nothing is left
    exit.json ◄──────────────  write, fsync, leave

The jobs' user wrote whatever the daemon reads here: it is bounded, and trusted for nothing but this
job.
"""
