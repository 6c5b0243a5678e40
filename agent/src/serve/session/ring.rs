//! A session's answers about the rings.

use unikprof_proto::code::{message_type, refusal};
use unikprof_proto::frame::{self, FrameError};
use unikprof_proto::message::{EventNames, Ring, Stacks};

use super::{Context, FRAME, OUTPUT, Phase, Session};
use crate::ground::text::Text;
use crate::record::ring_answer::{Answer, OVERHEAD};
use crate::ring::NO_RINGS;

impl Session {
    /// Answers a request for records, stacks or names.
    pub(super) fn answer_ring(
        &mut self,
        request: &frame::Frame<'_>,
        context: &mut Context<'_, '_, '_>,
    ) -> Result<bool, FrameError> {
        let agent = context.agent;
        let (vcpu, answer) = match request.kind {
            message_type::RING => {
                let ring: Ring = frame::decode(request)?;
                context.recorder.pin(context.now_ns);
                (ring.vcpu, Answer::Head(ring))
            }
            message_type::STACKS => {
                let Stacks { vcpu, known } = frame::decode(request)?;
                (vcpu, Answer::stacks(agent, vcpu, known))
            }
            _ => {
                let EventNames { first } = frame::decode(request)?;
                (0, Answer::Names(first))
            }
        };
        let text = match agent.rings() {
            None => Text::from(NO_RINGS),
            Some(rings) if rings.ring(vcpu).is_none() => Text::format(format_args!(
                "vCPU {} has no ring; there are {} vCPUs, counted from 0",
                u64::from(vcpu),
                u64::from(agent.config().vcpus)
            )),
            Some(_) => {
                self.ring = Some(answer);
                self.continue_ring(context);
                return Ok(true);
            }
        };
        self.refuse(refusal::NO_RING, request.kind, text.as_str());
        Ok(true)
    }

    /// Sends the next frame of an answer about the rings; returns whether there was one in
    /// progress.
    pub(super) fn continue_ring(&mut self, context: &Context<'_, '_, '_>) -> bool {
        let Some((answer, rings)) = self.ring.take().zip(context.agent.rings()) else {
            return false;
        };
        let mut payload = [0; OUTPUT - OVERHEAD];
        let payload = self.run(&mut payload);
        let room = &mut self.output[self.output_end..FRAME + OUTPUT];
        match answer.encode(context.agent, rings, payload, room) {
            Ok((length, next)) => {
                self.output_end += length;
                self.ring = next;
            }
            // Every message has a limit, so that it fits the empty output.
            Err(_) => self.phase = Phase::Closing,
        }
        true
    }
}
