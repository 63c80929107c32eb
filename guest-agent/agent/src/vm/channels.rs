//! The ways on which a host reaches the service: a listener, and beside it, in a machine, the serial port.

use super::listen::Listener;
use super::options::Address;
use super::serial_port::{self, PORT_NAME};
use service::{Guest, Server};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the port's driver may take to come, in a system that loads it by itself.
const PORT_PATIENCE: Duration = Duration::from_secs(30);
const PORT_PAUSE: Duration = Duration::from_millis(100);

/// Serves for ever. The message says why there is no way at all.
pub async fn serve<G: Guest>(address: &Address, server: Rc<Server<G>>) -> Result<(), String> {
    let listener = Listener::bind(address).map_err(|error| format!("cannot listen: {error}"));
    if *address != Address::Machine {
        listener?.serve(server).await;
        return Ok(());
    }
    let listening = async {
        match listener {
            Ok(listener) => {
                listener.serve(server.clone()).await;
                Ok(())
            }
            Err(why) => Err(why),
        }
    };
    let (listened, carried) = tokio::join!(listening, serve_port(&server));
    listened.or(carried)
}

/// Serves the port whenever the machine has it; ends when it does not come.
async fn serve_port<G: Guest>(server: &Rc<Server<G>>) -> Result<(), String> {
    let mut missing_since = Instant::now();
    while missing_since.elapsed() < PORT_PATIENCE {
        if let Some(path) = serial_port::find(PORT_NAME) {
            match serial_port::open(&path) {
                Ok((reader, writer)) => {
                    server.clone().serve_device(reader, writer).await;
                    missing_since = Instant::now();
                }
                Err(error) => eprintln!("fluxvm-guest-agent: {}: {error}", path.display()),
            }
        }
        sleep(PORT_PAUSE).await;
    }
    Err(format!("the machine has no port {PORT_NAME}"))
}
