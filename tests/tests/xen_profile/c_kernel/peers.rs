//! Whether peers that are no clients harm the kernel: all of their bytes go through its netfront and the agent's TCP.

use std::io::Write as _;
use std::net::TcpStream;

use unikprof_client::exit_code;

use super::{on_kernel, report, start};
use crate::harness::{counters_add_up, wait_until};

/// Guards against a kernel that dies of, or a recording that is lost to, whoever else finds the port.
#[test]
fn peers_that_are_no_clients_do_not_disturb_a_recording() {
    on_kernel(|client| {
        client.must(&start());
        let rubbish: Vec<u8> = (0..20_000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for round in 0..3 {
            // More than there are sessions; each is gone, or given up, before the next come.
            let mut peers: Vec<TcpStream> = (0..6)
                .map(|_| TcpStream::connect(client.address()).unwrap())
                .collect();
            for peer in &mut peers {
                // The agent may have closed it already.
                let _ = peer.write_all(&rubbish[round * 100..]);
            }
        }
        // Until they are given up, all sessions may be taken.
        wait_until("a session", || {
            let code = client.connect(&["check"]).code;
            (code == Some(exit_code::SUCCESS.into())).then_some(())
        });
        client.wait_for_status("a recording that goes on", |status| {
            status["state"] == "recording" && status["counters"]["recorded"].as_u64() > Some(200)
        });
        client.stop("run.unikprof");
        counters_add_up(&report(client));
    });
}
